"""The doors: ServerApp, ClientApp, the `lethe` command, the manifest, the stage cache, the launcher. No algorithms."""
