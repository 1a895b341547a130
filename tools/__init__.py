"""Set-up, build and serving scripts; `make help` lists what calls them."""
