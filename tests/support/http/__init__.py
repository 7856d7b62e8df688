"""Servers, clients, scripts of chats and golden transcripts for tests through HTTP."""
