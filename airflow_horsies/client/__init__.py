"""What everybody above calls: verbs over the database, horsies' schema and our own."""
