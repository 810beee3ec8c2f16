"""The operators' page: files that a browser loads, and the handlers that hand them out."""
