"""What predictions and answers are worth: scores of texts and of generated answers."""
