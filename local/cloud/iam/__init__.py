"""What IAM would say to each request: who asks, for which actions on which resources, and whether its role may."""
