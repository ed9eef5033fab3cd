"""Tests of the policies with the engines that evaluate them."""
