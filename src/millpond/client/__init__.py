"""The client of a server: the same reads as on a local pond, over HTTP.  Needs `millpond[client]`."""

from millpond.client.remote import AsyncRemotePond, AsyncRemoteTable, RemotePond, RemoteTable, connect, connect_async

__all__ = ["AsyncRemotePond", "AsyncRemoteTable", "RemotePond", "RemoteTable", "connect", "connect_async"]
