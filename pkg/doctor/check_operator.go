package doctor

func operatorChecks() []Check { return nil }
