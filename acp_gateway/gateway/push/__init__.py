"""Web Push: notifications of open questions, for browsers whose page is closed.

`deciding` is pure: what is sent to which browser and when, and what an answer of a push service means; so is
`wording`: what an agent asks for. `store` keeps the subscriptions, `service` sends.
"""
