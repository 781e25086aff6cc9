"""In: plain data of a report. Out: HTML and SVG elements of the page."""
