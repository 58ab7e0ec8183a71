"""Work behind the routes: micro-batches, thread pools that share fairly, image encoding."""
