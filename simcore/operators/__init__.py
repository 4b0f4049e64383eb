"""What a layer computes and communicates, operator by operator."""
