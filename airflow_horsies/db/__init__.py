"""The only room with a driver: connections, and scripts of statements run on them."""
