"""LangChain and LangGraph, tried with real agents whose model is scripted."""
