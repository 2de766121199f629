"""The verdict on a policy in the formats that other tools read, and as a page for whoever signs it."""
