"""In: a proved or promised call. Out: guards, a program and deferred side effects."""
