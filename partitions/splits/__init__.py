"""Ways to spread records over sites, one file each."""
