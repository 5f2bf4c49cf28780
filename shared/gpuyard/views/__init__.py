"""What every reader is shown: the API, the CLI, the SDK and the web page alike.

Keys are always present; unknown is None, never 0; times are RFC 3339 UTC; units are in names. The
reference of the API (docs/reference/api.md) is made from these modules.
"""
