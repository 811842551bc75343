"""Fits of laws of loss: forms and terms, starts, likelihood, resampling and backtests."""
