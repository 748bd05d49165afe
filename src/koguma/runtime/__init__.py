"""What the process runs on: settings, logs, background tasks, files, memory."""
