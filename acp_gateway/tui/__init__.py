"""The full-screen program `chat`: widgets of urwid, and the sessions behind them.

Urwid runs on Trio's loop; Textual needs asyncio.
"""
