"""A federation between machines: parties dial out to the label holder's hub over mutual TLS."""
