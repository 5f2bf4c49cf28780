"""The SDK: `AsyncClient`, its sync face `Client`, and where both find their settings.

Nothing is imported here, so that reading the configuration does not load the bus.
"""
