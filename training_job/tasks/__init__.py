"""Tasks that are baked into the image. A run spec names them by ``module:Class``; no other code does."""
