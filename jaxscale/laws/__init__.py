"""Laws of loss, critical batch, shape and failures."""
