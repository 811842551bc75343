"""Configurations of Hugging Face: conversion of keys to the shape of a model."""
