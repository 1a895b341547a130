"""The machines that run the operations of `evermind_web.ops`."""
