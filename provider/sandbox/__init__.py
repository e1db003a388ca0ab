"""A provider to rehearse against: a real HTTP server with its own durable record, told what to do per key."""
