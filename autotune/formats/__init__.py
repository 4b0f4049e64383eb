"""Other programs' configuration files: read into models and strategies, and written from them."""
