"""`keepwarm simulate`: a trace over simulated replicas, under each way of routing."""
