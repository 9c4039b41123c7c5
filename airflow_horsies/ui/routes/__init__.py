"""The routes behind the pages, one module per page."""
