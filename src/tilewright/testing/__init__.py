"""What tests and plug-ins test with: simulated devices, replayed measurements, conformance kits."""
