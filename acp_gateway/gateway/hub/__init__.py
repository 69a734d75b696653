"""The hub: one running agent, its clients, and the tasks that move messages between them."""
