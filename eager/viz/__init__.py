"""In: tapes and numbers. Out: pictures of them, as SVG and HTML."""
