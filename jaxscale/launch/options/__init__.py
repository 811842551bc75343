"""Options of training frameworks, with the checks that the programs make of them."""
