"""Networks: layers, torsos, memories, and architectures that change."""
