"""Sessions inside other tools: Hugging Face data sets, FiftyOne, MLflow. Each imports its tool when it is called."""
