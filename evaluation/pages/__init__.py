"""Pages of a server: runs, one run, two side by side, one beside published tables. No script, all from here."""
