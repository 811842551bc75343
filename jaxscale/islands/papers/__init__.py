"""Published systems as cases of the same equations: partitioned learning, subnetworks, local losses, graphs."""
