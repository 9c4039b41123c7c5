"""The routes behind the pages, a module for each page."""
