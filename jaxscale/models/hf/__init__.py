"""Configurations of Hugging Face: what their keys mean for the shape of a model."""
