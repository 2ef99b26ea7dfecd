"""The workspace: tools over one folder. `toolbox` makes them; the others run in helper processes."""
