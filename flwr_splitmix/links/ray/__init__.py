"""The link of simulations: Ray actors that hold many virtual clients each."""
