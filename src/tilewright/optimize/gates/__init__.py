"""The gates that a change must pass: verified, judged on time, against incumbent and baseline."""
