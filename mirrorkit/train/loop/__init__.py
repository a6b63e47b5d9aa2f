"""The loop: epochs of compiled calls, the data they read, and the Keras callbacks around them."""
