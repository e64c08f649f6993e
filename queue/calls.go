package queue

import "time"

// callTimeout bounds one call that doesn't wait for messages.
const callTimeout = 5 * time.Second
