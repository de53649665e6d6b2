package doctor

func driverChecks() []Check { return nil }
