"""The full-screen program `chat`: widgets of urwid, and the sessions behind them."""
