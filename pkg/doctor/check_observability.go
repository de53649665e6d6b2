package doctor

func observabilityChecks() []Check { return nil }
