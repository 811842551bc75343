"""Constrained minimisation of smooth problems: descent, augmented Lagrangian, interior point."""
