"""Tests of LangChain and LangGraph with their own agents and a scripted model."""
