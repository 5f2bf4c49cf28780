"""One module per group of pages of docs/reference; each page is a function that returns its text.

What the code says is taken from the code. What only words can say stands here, keyed by the code's
own names: a name without words, or words without a name, is an error, so no page can drift.
"""
