"""The link for simulations: Ray actors that each hold many virtual clients."""
